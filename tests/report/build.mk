# `tide report`. The page is opened in Chromium where there is one.
ifneq ($(filter $(BIN)/tide,$(PRODUCTS)),)
SUITES += tests/report/tide_report_test.py
endif
