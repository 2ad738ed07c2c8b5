# What the rooms of the shim share: the torch they are built against and tested with.
TORCH_FACTS := $(shell mkdir -p $(BUILD); $(PYTHON) shim/torch/probe.py $(PYTHON) build/venv/bin/python >$(BUILD)/torch.mk; echo $(BUILD)/torch.mk)
include $(TORCH_FACTS)
export TORCH_PYTHON
ifndef CUDA_DEVICE_SOURCES
include shim/device/cuda.mk
endif
