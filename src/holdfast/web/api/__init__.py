"""The endpoints of the HTTP API, below /api/v1. docs/reference/http-api.md describes them.

Each endpoint is a function that is given a `Call` and returns data; one that may wait is a coroutine function. What
it takes and returns is declared with it, so that requests are checked and the OpenAPI document is made from the same
types. An endpoint knows nothing of HTTP beyond that: authentication, errors and encoding are in web/app.py.
"""

from . import jobs, operations, queues, schedules, statistics, upkeep
from .call import Call, Endpoint, PayloadRules, Served
from .operations import start_operation

ENDPOINTS: list[Endpoint] = [
    endpoint
    for module in (jobs, operations, queues, statistics, upkeep, schedules)
    for endpoint in module.endpoint.endpoints
]

__all__ = ["ENDPOINTS", "Call", "Endpoint", "PayloadRules", "Served", "start_operation"]
