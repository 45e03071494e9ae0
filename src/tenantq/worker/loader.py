"""Loads a worker from ``module:name``."""

import importlib
import sys
from pathlib import Path

from tenantq.errors import Invalid, NotFound
from tenantq.worker.worker import Worker


def load_worker(address: str) -> Worker:
    """Return the worker at ``address``, for example ``shop.tasks:worker``. The working directory is searched first.

    Raises Invalid if the address is malformed or does not name a worker, and NotFound if the module or name does not exist. Errors
    inside the module propagate.
    """
    module_name, _, name = address.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")]):
        raise Invalid(f"worker: {address[:100]!r} is not of the form module:name, for example shop.tasks:worker")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise  # the module exists but imports one that does not
        raise NotFound(f"worker: no module {module_name} in {here} or on the Python path") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            known = sorted(one for one, value in vars(sys.modules[module_name]).items() if isinstance(value, Worker))
            hint = f". Its workers: {', '.join(known)}" if known else ""
            raise NotFound(f"worker: module {module_name} has no attribute {name}{hint}") from error
    if not isinstance(found, Worker):
        raise Invalid(f"worker: {address} is a {type(found).__name__}, not a Worker")
    return found
