"""A proof as a step of continuous integration: python examples/prove_in_ci.py [MODEL]

Ends with 1 and the first difference if a bit changed, and keeps the certificate as an artifact.
"""

import subprocess
import sys

model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
command = [sys.executable, "-m", "draftproof", "prove", model, "--out", "certificate.json"]
raise SystemExit(subprocess.run(command, check=False).returncode)
