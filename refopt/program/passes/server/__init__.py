"""A parameter server in miniature: gradients are cut into blocks and sent to the ranks that update these.

`send` decides what can be moved to servers, `pieces` which server has which block, and `exchange` adds the ops that
send gradients there and parameters back. The types of these ops are in `refopt.program.ops`.
"""

from refopt.program.passes.server.send import send_to_owners

__all__ = ["send_to_owners"]
