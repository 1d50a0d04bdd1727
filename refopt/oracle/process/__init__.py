"""A step in a process of its own: what it does there spoils nothing here, and its end is a verdict.

`in_process` gives what runs its steps in a child process, and a note where that cannot be. The cases, the laws, the
bounds and the report stay on this side: the step has nothing but its arguments, and whatever it writes elsewhere, or
replaces, is not what it is judged by. The child is made before a device is touched, and made anew only after it has
ended, hung or been spoiled. A `Remote` asks on this side, and `SubjectAnswers` answers on that.
"""

from refopt.oracle.process.remote import Remote
from refopt.oracle.process.starting import Kept, in_process

__all__ = ["Kept", "Remote", "in_process"]
