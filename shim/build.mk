# What the rooms of the shim share: the torch they are built against and tested with.
ifeq ($(shell command -v "$(PYTHON)"),)
ifneq ($(PYTHON),python3)  # that one is installed by `make deps`
$(error there is no $(PYTHON): PYTHON= names the python of the jobs)
endif
endif
TORCH_FACTS := $(shell mkdir -p $(BUILD); { ! command -v "$(PYTHON)" >/dev/null || \
  "$(PYTHON)" shim/torch/probe.py "$(PYTHON)" $(BUILD)/venv/bin/python build/venv/bin/python; } \
  >$(BUILD)/torch.mk; echo $(BUILD)/torch.mk)
include $(TORCH_FACTS)
export TORCH_PYTHON
ifndef CUDA_DEVICE_SOURCES
include shim/device/cuda.mk
endif
