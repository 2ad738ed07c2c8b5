/* The ragged layout planner for callers that are not C++: a request and an answer in JSON.
 * libtide-plan.so; shim/cli/python/tide_plan.py is its Python side.
 *
 * Request: {"devices": 8, "tensors": [{"name": "w", "shape": [4096, 1024], "dtype": "bf16",
 *           "requires_grad": true, "block": "rows:32"}, ...]}, with a tensor's last three keys
 * optional, and these too: "name" (of the group), "unit", "alignment_bytes", "order" (registered,
 * block, shape, best), "sub_buffers" (off, on, auto), "exact_budget". See include/tide/ragged.h.
 *
 * Answer: {"buffers": [{"name", "dtype", "requires_grad", "devices", "unit", "alignment", "shard",
 *          "numel", "padding_pct", "proof": {"lower_bound", "step", "minimal"},
 *          "tensors": [{"index", "name", "numel", "block", "start"}, ...]}, ...]}
 * in elements, every plan verified by the checker; or {"error": "what failed; what to do"}.
 */
#ifndef TIDE_RAGGED_C_H_
#define TIDE_RAGGED_C_H_

#ifdef __cplusplus
extern "C" {
#endif

/* Never NULL unless memory is out. Give the answer back to tide_plan_free. Thread-safe. */
char* tide_plan(const char* request);
void tide_plan_free(char* answer);

#ifdef __cplusplus
}
#endif

#endif
