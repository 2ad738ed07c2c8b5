// include/tide/rail.h as it is found in a loaded libnccl-net-tide.so.
#pragma once

#include "include/tide/rail.h"

struct RailLibrary {
  // Exits with a message when something is missing.
  explicit RailLibrary(const char* path);

  decltype(&tide_rail_version) version;
  decltype(&tide_rail_open) open;
  decltype(&tide_rail_address) address;
  decltype(&tide_rail_device) device;
  decltype(&tide_rail_speed) speed;
  decltype(&tide_rail_connect) connect;
  decltype(&tide_rail_register) add_region;
  decltype(&tide_rail_unregister) remove_region;
  decltype(&tide_rail_begin) begin;
  decltype(&tide_rail_send) send;
  decltype(&tide_rail_expect) expect;
  decltype(&tide_rail_wait_landed) wait_landed;
  decltype(&tide_rail_wait_sent) wait_sent;
  decltype(&tide_rail_end) end;
  decltype(&tide_rail_test) test;
  decltype(&tide_rail_wait) wait;
  decltype(&tide_rail_get_stats) get_stats;
  decltype(&tide_rail_error) error;
  decltype(&tide_rail_abort) abort;
  decltype(&tide_rail_close) close;
};
