// The tuned kernels of a device against its plain ones, layer by layer: a text goes through both, and each layer of the tuned run
// attends to what the plain one selected and runs the experts that it chose. What the tuned run would have taken is compared
// by itself. Otherwise two choices between near ties, which differ between any two programs in `official`, would be all that a
// comparison of later layers shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/device_runs.h"
#include "ops/cuda_backend.h"

namespace levin::test {

// Of a layer. Errors are means over rows, of the length of a row's difference as a share of the plain row's length.
struct LayerDifference {
  double row_error = 0;                    // of the residual stream after the layer
  double score_error = 0;                  // of index scores; of their spread: the share is of the row without its mean
  double logit_error = 0;                  // of router logits
  int64_t n_picks = 0, n_other_picks = 0;  // of rows that select, and those that the plain run does not have
  // Picks whose plain score is further from the least that the plain run selected than twice the largest difference of a score
  // of their row: no error of scores explains them.
  int64_t n_unexplained_picks = 0;
  int64_t n_experts = 0, n_other_experts = 0;

  std::string describe() const;
};

// What of the plain run goes into the tuned one.
enum class Forced : uint8_t {
  kNothing,
  kChoices,           // picks and experts
  kChoicesAndInputs,  // and the rows that a layer begins with
};

// For each of `ways` the differences of all layers. The weights lie in the memory of the device, which both sets read alike.
std::vector<std::vector<LayerDifference>> differences_of_layers(CudaBackend& tuned, CudaBackend& plain,
                                                                const Model& model, const Ids& text,
                                                                const std::vector<Forced>& ways);

// What errors may be. The sets add in other orders and round some values to bf16, 2^-9 of them, so a few values are rounded
// to another e4m3 code, each a step of about 2^-3.5 away; that makes more codes of the next rounding differ, and so on, until
// roundings are independent of each other. Not more: then each adds the difference of two errors that are even over a step,
// r = sqrt 2 * 2^-3.5 / sqrt 12 of a row by the root of the mean square.
//
// Rows after a layer: three roundings on the way to what its attention gives, the input of latents, the cached latent and the
// output projection's input; one of the input of the experts, and one of their hidden values. Those are products of two rows,
// gate and up, which both have the differences of their input: 2 (3 + 1) + 1 = 9 r^2 in all. `n_layers` layers that the
// differences went through: each adds that to twice what its own input differed by.
double row_tolerance(int n_layers);
// Index scores: a dot has three roundings on its way, of the query's latent, the query and the key, which are a share of
// r sqrt 3 of its root mean square over the keys. Those below zero count as zero in score and difference alike, which leaves
// half of both squares, and of the scores' spread 1/2 - 1/(2 pi). From the same input.
double score_tolerance();
// Router logits: three roundings on the way to what attention gives. From the same input.
double logit_tolerance();

// Holds the differences to what there is a bound for, and prints them.
void expect_near_plain(const std::vector<LayerDifference>& layers, Forced forced);

}  // namespace levin::test
