"""Running a step in a separate process: it cannot damage this process, and its end is a verdict.

`in_process` returns a subject whose steps run in a child process, and a note if that is impossible. The cases, laws,
bounds and report stay in this process: the step has only its arguments, and nothing that it writes or replaces
elsewhere affects the verdict. The child is made before a device is used, and replaced only after it has ended, hung or
been spoiled. A `Remote` on this side sends requests, which `SubjectAnswers` answers on the other.
"""

from refopt.oracle.process.remote import Kept, Remote, in_process

__all__ = ["Kept", "Remote", "in_process"]
