"""The operation table. Routing, checks and the OpenAPI document are made from it, and nothing else is."""

from typing import Final

from cloud_client.reference_server.web.api.operations_device import DEVICE_OPERATIONS
from cloud_client.reference_server.web.api.operations_partner import PARTNER_OPERATIONS

OPERATIONS: Final = (*PARTNER_OPERATIONS, *DEVICE_OPERATIONS)
