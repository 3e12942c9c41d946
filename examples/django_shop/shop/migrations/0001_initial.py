from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("customer", models.EmailField(max_length=254)),
                ("amount", models.PositiveIntegerField(help_text="in cents")),
                ("state", models.CharField(default="new", max_length=10)),
            ],
        ),
    ]
