"""A parameter server in miniature: gradients are cut into blocks and sent to the ranks that update these.

`send` says what can be moved to servers, `pieces` which server has which block, and `exchange` by which ops gradients
get there and parameters come back. The types of these ops are in `refopt.program.ops`, as all are.
"""

from refopt.program.passes.server.send import send_to_owners

__all__ = ["send_to_owners"]
