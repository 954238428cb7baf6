"""A loopback Modal, for koderz' own tests and for its users': no account, no network, no bill.

    with ModalServer() as server:
        ...  # run Modal's SDK or command with server.environment, then look at server.functions, .counts, .volume(…)

From a shell: `python -m koderz.testing.modal` prints the variables to set.
"""

from koderz.testing.modal.functions import Deployed
from koderz.testing.modal.sandboxes import Sandboxed
from koderz.testing.modal.server import ModalServer

__all__ = ["Deployed", "ModalServer", "Sandboxed"]
