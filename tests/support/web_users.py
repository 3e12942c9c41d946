"""The password of the users in tests of the web server, and its hash, which takes long to make."""

from holdfast.web import auth

PASSWORD = "correct horse battery"
HASH = auth.hash_password(PASSWORD)
