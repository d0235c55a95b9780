"""What the multi-instance tests stand on: instances, routers, clusters, clients."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
