#include "ops/cpu/products.h"

#include <algorithm>
#include <array>

#include "kernels/cpu/kernels.h"
#include "ops/cpu/row_loops.h"

namespace levin {
namespace {

// Below these a loop over threads costs more than it saves (a microsecond of one core).
constexpr int64_t kSmallProduct = 32 * 1024;  // multiply-adds
constexpr int64_t kUnitPanels = 4;            // panels that a thread keeps together where there are enough
constexpr int64_t kUnitsPerThread = 4;        // wanted at least

using kernels::kRowGroup;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Room for the layout of any kernel set.
int64_t operand_elements(int64_t n_rows, int64_t k, DType dtype) {
  return n_rows * (dtype == DType::kBF16 ? ceil_div(k, kernels::kOperandPadding) * kernels::kOperandPadding : k);
}

// Few rows are an operand wherever they lie, if their type is right and the last pair of k is complete.
bool are_few(const PreparedRows& o) { return o.input.n_rows <= kRowGroup; }
bool is_operand_already(const PreparedRows& o) {
  return are_few(o) && o.input.dtype == o.dtype && (o.dtype == DType::kF32 || o.input.k % 2 == 0);
}

const void* input_row(const InputRows& input, int64_t i) {
  const int64_t row = input.rows != nullptr ? input.rows[i] : i;
  return static_cast<const std::byte*>(input.x) + row * input.stride * dtype_bytes(input.dtype);
}

// A plain row of type `dtype` with the values of row i.
void convert_row(const CpuBackend& cpu, const InputRows& input, int64_t i, DType dtype, void* out) {
  cpu.kernels().matmul.prepare({.x = input_row(input, i),
                                .x_dtype = input.dtype,
                                .x_stride = input.stride,
                                .row_end = 1,
                                .n_rows = 1,
                                .k = input.k,
                                .operand_dtype = dtype,
                                .operand = out});
}

std::byte* operand_row(const PreparedRows& o, int64_t i) {  // of few
  const int64_t row_bytes = operand_elements(1, o.input.k, o.dtype) * dtype_bytes(o.dtype);
  return static_cast<std::byte*>(const_cast<void*>(o.data)) + i * row_bytes;
}

// The parts that rows are prepared in: rows of few, groups of many.
int64_t n_parts(const PreparedRows& o) {
  if (is_operand_already(o)) return 0;
  return are_few(o) ? o.input.n_rows : ceil_div(o.input.n_rows, kRowGroup);
}

void prepare_parts(const CpuBackend& cpu, const PreparedRows& o, Share parts) {
  if (are_few(o)) {
    for (int64_t i = parts.begin; i < parts.end; ++i) convert_row(cpu, o.input, i, o.dtype, operand_row(o, i));
    return;
  }
  cpu.kernels().matmul.prepare({.x = o.input.x,
                                .x_dtype = o.input.dtype,
                                .x_stride = o.input.stride,
                                .rows = o.input.rows,
                                .row_begin = parts.begin * kRowGroup,
                                .row_end = std::min(o.input.n_rows, parts.end * kRowGroup),
                                .n_rows = o.input.n_rows,
                                .k = o.input.k,
                                .operand_dtype = o.dtype,
                                .operand = const_cast<void*>(o.data)});
}

// How one product is cut: row_chunks x panel_units, all about equally dear.
struct Cut {
  int64_t n_panels;
  int64_t unit_panels;
  int64_t n_units;     // of panels
  int64_t chunk_rows;  // a multiple of kRowGroup
  int64_t n_chunks;
  int64_t unit_cost;

  int64_t cost() const { return n_units * n_chunks * unit_cost; }
};

Cut cut_product(const Product& p, int64_t all_panels, int n_threads, int64_t free_rows) {
  const int64_t wanted = kUnitsPerThread * n_threads, n_rows = p.x->input.n_rows;
  Cut cut{};
  cut.n_panels = p.w->n_panels();
  cut.unit_panels = all_panels >= kUnitPanels * wanted ? kUnitPanels : 1;
  cut.n_units = ceil_div(cut.n_panels, cut.unit_panels);
  const int64_t n_chunks =
      all_panels >= wanted ? 1 : std::min(ceil_div(wanted, all_panels), ceil_div(n_rows, kRowGroup));
  cut.chunk_rows = ceil_div(ceil_div(n_rows, n_chunks), kRowGroup) * kRowGroup;
  cut.n_chunks = ceil_div(n_rows, cut.chunk_rows);
  cut.unit_cost = std::max(free_rows, std::min(n_rows, cut.chunk_rows)) * p.w->k() * cut.unit_panels;
  return cut;
}

kernels::ProductJob product_job(const Product& p) {
  const PreparedRows& x = *p.x;
  const InputRows& input = x.input;
  std::array<const void*, kRowGroup> plain_rows{};
  for (int64_t i = 0; are_few(x) && i < input.n_rows; ++i) {
    plain_rows[static_cast<size_t>(i)] = x.data == nullptr ? input_row(input, i) : operand_row(x, i);
  }
  return {.operand = x.data,
          .plain_rows = plain_rows,
          .operand_dtype = x.dtype,
          .x_scale = input.scale,
          .x_scale_stride = input.scale_stride,
          .x_scale_rows = input.rows,
          .n_rows = input.n_rows,
          .panels = p.w->panel(0),
          .panel_bytes = p.w->panel_bytes(),
          .w_dtype = p.w->dtype(),
          .w_scales = p.w->panel_scales(0),
          .n = p.w->n(),
          .k = p.w->k(),
          .out = p.out,
          .out_stride = p.out_stride};
}

// Units begin .. end-1 of a product, counted through the panels of the first chunk of rows, then of the second.
void run_units(const kernels::CpuKernels& cpu, const Product& p, const Cut& cut, Share units) {
  kernels::ProductJob job = product_job(p);
  while (units.begin < units.end) {
    const int64_t chunk = units.begin / cut.n_units, first = units.begin % cut.n_units;
    const int64_t n = std::min(units.end - units.begin, cut.n_units - first);
    job.row_begin = chunk * cut.chunk_rows;
    job.row_end = std::min(job.n_rows, job.row_begin + cut.chunk_rows);
    job.panel_begin = first * cut.unit_panels;
    job.panel_end = std::min(cut.n_panels, (first + n) * cut.unit_panels);
    cpu.matmul.product(job);
    units.begin += n;
  }
}

}  // namespace

OpWork product_work(DType operand, const Matrix& w, int64_t n_rows) {
  const double flop = 2.0 * static_cast<double>(n_rows * w.n() * w.k());
  OpWork work{.bytes = static_cast<double>(w.n_bytes())};
  (operand == DType::kBF16 ? work.bf16_flop : work.f32_flop) = flop;
  return work;
}

bool multiplies_bf16(const CpuBackend& cpu) {
  return cpu.kernels().matmul.operand_dtype(DType::kBF16, DType::kBF16) == DType::kBF16;
}

DType operand_dtype(const CpuBackend& cpu, DType x, const Matrix& w) {
  return cpu.kernels().matmul.operand_dtype(x, w.dtype());
}

void prepare_rows(CpuBackend& cpu, std::span<PreparedRows> operands) {
  std::vector<int64_t> first_part = {0};
  int64_t n_elements = 0;
  for (PreparedRows& o : operands) {
    first_part.push_back(first_part.back() + n_parts(o));
    if (is_operand_already(o)) continue;
    const int64_t n = operand_elements(o.input.n_rows, o.input.k, o.dtype);
    o.data = cpu.arena().allocate_bytes(n * dtype_bytes(o.dtype));
    n_elements += n;
  }
  const int64_t n = first_part.back();
  cpu.pool().parallel_for(n, n_elements <= kFewValues ? n : 1, [&](int64_t begin, int64_t end, int) {
    for (size_t i = 0; i < operands.size(); ++i) {
      const int64_t from = std::max(begin, first_part[i]), to = std::min(end, first_part[i + 1]);
      if (from < to) prepare_parts(cpu, operands[i], {from - first_part[i], to - first_part[i]});
    }
  });
}

InputRows widen_rows(CpuBackend& cpu, const InputRows& input, DType dtype) {
  if (input.dtype == dtype) return input;
  InputRows wide = input;
  wide.dtype = dtype;
  wide.stride = operand_elements(1, input.k, dtype);
  std::byte* data = cpu.arena().allocate_bytes(input.n_rows * wide.stride * dtype_bytes(dtype));
  wide.x = data;
  wide.rows = nullptr;
  const int64_t grain = row_grain(input.n_rows, input.k);
  cpu.pool().parallel_for(input.n_rows, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      convert_row(cpu, input, row, dtype, data + row * wide.stride * dtype_bytes(dtype));
  });
  return wide;
}

void run_products(CpuBackend& cpu, std::span<const Product> products) {
  const int n_threads = cpu.pool().n_threads();
  int64_t all_panels = 0, multiply_adds = 0;
  for (const Product& p : products) {
    all_panels += p.w->n_panels();
    multiply_adds += p.x->input.n_rows * p.w->n() * p.w->k();
  }
  std::vector<Cut> cuts;
  std::vector<int64_t> first_cost = {0};
  for (const Product& p : products) {
    cuts.push_back(cut_product(p, all_panels, n_threads, cpu.kernels().matmul.free_rows));
    first_cost.push_back(first_cost.back() + cuts.back().cost());
  }
  const int64_t total = first_cost.back();
  cpu.pool().parallel_for(total, multiply_adds <= kSmallProduct ? total : 1, [&](int64_t begin, int64_t end, int) {
    for (size_t i = 0; i < products.size(); ++i) {
      const int64_t from = std::max(begin, first_cost[i]), to = std::min(end, first_cost[i + 1]);
      if (from >= to) continue;
      const Share units = {ceil_div(from - first_cost[i], cuts[i].unit_cost),
                           ceil_div(to - first_cost[i], cuts[i].unit_cost)};
      run_units(cpu.kernels(), products[i], cuts[i], units);
    }
  });
}

}  // namespace levin
