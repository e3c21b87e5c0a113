// Calls on a device that were recorded as graphs: by a key, which says all that the host decides about them. What else they
// depend on lies in device memory.
//
// A call finds its inputs where they were when it was recorded, and leaves its results there. Its memory is the backend's
// arena, which therefore has to stand at the same place whenever a call of the same key begins.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "ops/cuda_backend.h"

namespace levin {

template <class Key, class Out>
class RecordedCalls {
 public:
  int64_t n_recorded() const { return std::ssize(calls_); }
  bool contains(const Key& key) const { return calls_.contains(key); }

  // Runs the call first: what its kernels load and allocate is there from then on, as a recording needs. `seq`: not of padding
  // alone (CudaBackend::record_for_rows); empty: always. kOutOfMemory leaves nothing recorded and the device as it was.
  Status record(CudaBackend& cuda, const Key& key, const std::function<Out()>& call, const View& seq = {}) {
    run(cuda, call);
    wait_for(cuda);
    Recorded recorded;
    const auto enqueue = [&] { recorded.out = run(cuda, call); };
    Result<std::unique_ptr<RecordedWork>> work =
        seq.empty() ? cuda.record(enqueue) : cuda.record_for_rows(seq, enqueue);
    if (!work.ok()) return work.error();
    recorded.work = std::move(work).value();
    calls_.emplace(key, std::move(recorded));
    return {};
  }

  const Out& replay(const Key& key) {
    const Recorded& recorded = calls_.at(key);
    recorded.work->replay();
    return recorded.out;
  }

 private:
  struct Recorded {
    std::unique_ptr<RecordedWork> work;
    Out out;
  };

  static Out run(CudaBackend& cuda, const std::function<Out()>& call) {
    const ArenaScope scratch(cuda.arena());
    return call();
  }

  std::map<Key, Recorded> calls_;
};

}  // namespace levin
