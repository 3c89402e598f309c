"""`python -m penstock.node OPTIONS`: the process that `penstock up` becomes; OPTIONS are `UpOptions` as JSON."""

from __future__ import annotations

import sys

import msgspec

from penstock.config.options import UpOptions
from penstock.node.process import run

sys.exit(run(msgspec.json.decode(sys.argv[1], type=UpOptions)))
