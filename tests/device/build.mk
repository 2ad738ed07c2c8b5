# Tests and benchmark of the host device.
APT += libgtest-dev
DEVICE_TEST_SOURCES := tests/device/ranks.cc $(HOST_DEVICE_SOURCES)
$(eval $(call unit_test,device_exchange,tests/device/exchange_test.cc $(DEVICE_TEST_SOURCES),))
$(eval $(call unit_test,device_failure,tests/device/failure_test.cc $(DEVICE_TEST_SOURCES),))
