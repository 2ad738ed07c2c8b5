/* Counts what the process takes from malloc, the plugin's part included. Under a sanitizer, which
 * has a malloc of its own, nothing is counted. */
#pragma once

long allocations_made(void);
long allocations_live(void);
