// The load of an engine, for monitoring.
#pragma once

#include <cstdint>

#include "kv/page_store.h"
#include "sched/scheduler.h"

namespace levin {

// Running and waiting requests, cache pages, prefix-cache hits.
struct EngineLoad : SchedulerCounts {
  PageStoreCounts store;          // prefix cache on disk
  int64_t n_memory_pages = 0;     // records in the host-memory prefix cache (kv/page_memory.h)
  int64_t n_memory_bytes = 0;     // and their size
  int64_t n_restored_tokens = 0;  // of n_queried_tokens: rows read from disk instead of computed
  int64_t n_late_graphs = 0;      // graphs of a device that were recorded after load()
};

}  // namespace levin
