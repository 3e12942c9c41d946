from django.db import models


class Order(models.Model):
    customer = models.EmailField()
    amount = models.PositiveIntegerField(help_text="in cents")
    state = models.CharField(max_length=10, default="new")
