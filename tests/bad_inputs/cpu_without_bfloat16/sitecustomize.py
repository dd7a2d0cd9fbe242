"""On the module path of a process, this stands for a CPU that advertises bfloat16 and dies of it.

Such machines exist (a virtual one that hides AMX); the trial's process ends here as it ends there, by SIGILL.
"""

import os
import signal
import sys

if any("torch.bfloat16" in argument for argument in sys.orig_argv):
    os.kill(os.getpid(), signal.SIGILL)
