"""A loopback Modal, for koderz' own tests and for its users': no account, no network, no bill.

    with ModalServer() as server:
        ...  # run Modal's SDK or command with server.environment, then look at server.functions, .counts, .volume(…)

From a shell: `python -m tests.loopback_modal` prints the variables to set.
"""

from tests.loopback_modal.functions import Deployed
from tests.loopback_modal.sandboxes import Sandboxed
from tests.loopback_modal.server import ModalServer

__all__ = ["Deployed", "ModalServer", "Sandboxed"]
