"""``python manage.py run_worker``."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from shop.tasks import worker


class Command(BaseCommand):
    """Runs the worker until it is interrupted."""

    help = "Do the queued work of the shop."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument("--burst", action="store_true", help="Stop when all queues are empty.")

    def handle(self, **options: Any) -> None:
        """Run."""
        worker.run(burst=options["burst"])
