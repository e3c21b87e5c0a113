// The tokens of an MTP step whose output somebody asks for (Step::wanted), and the pass over them alone.
#pragma once

#include "model/pass.h"

namespace levin {

class WantedRows {
 public:
  // The rows of all tokens of `all`'s step are in the caches.
  explicit WantedRows(Pass& all)
      : all_(all),
        step_(are_all() ? all.step() : step_of_rows(all.ctx(), all.step(), *all.step().wanted)),
        pass_(are_all() ? all : all.of_rows(step_, *all.step().wanted)) {}
  WantedRows(const WantedRows&) = delete;  // the pass refers to the step
  WantedRows& operator=(const WantedRows&) = delete;

  bool are_all() const { return !all_.step().wanted; }
  bool are_none() const { return step_.n_tokens() == 0; }
  const Step& step() const { return step_; }
  Pass& pass() { return pass_; }
  View of(View x) { return are_all() ? x : all_.rows_of(x, *all_.step().wanted); }  // [T, D] -> [N, D]

 private:
  Pass& all_;
  Step step_;
  Pass pass_;
};

}  // namespace levin
