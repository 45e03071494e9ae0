"""Django's command line, for this example.

pip install tenantq django
python manage.py migrate --run-syncdb
TENANTQ_TOKEN=tq_… python manage.py runserver
TENANTQ_TOKEN=tq_… python manage.py run_worker
"""

import os

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line()
