// What this libibverbs has beyond verbs, for test programs (by dlsym, or linked).
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Takes the port of a device ("sv0") down (up = 0) or up, for every process that uses it, with
// events. host: which host's device, -1 for the caller's own. Returns 0, ENODEV or EINVAL.
int softverbs_set_port(const char* device, int host, int up);

#ifdef __cplusplus
}
#endif
