// Chooses which of the candidates of a canvas's masked positions are written.
#pragma once

#include "core/diffusion/unmasking.h"
#include "core/select/canvas.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvscope {

/// What a masked position's candidate is ranked by; the higher, the sooner it is written. draw: the next number in
/// [0, 1), called once where the rank is random.
double rankOf(const CanvasOptions& options, const Candidate& candidate, const std::function<double()>& draw);

/// The positions that forward `step` of a block writes, ascending: of equal ranks the lower. masks: of the block when
/// it began. candidates: of all masked positions of the block, ascending; ranks: of each of them. draw: called once a
/// candidate by CanvasRank::Chance, once a written one by a warm rank, else never. The result may be empty with Dream's
/// loop alone.
std::vector<std::int32_t> chooseOnCanvas(const CanvasOptions& options, int step, int masks,
                                         std::span<const Candidate> candidates, std::span<const double> ranks,
                                         const std::function<double()>& draw);

} // namespace kvscope
