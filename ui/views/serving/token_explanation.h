// Why a token came when it came, in words.
#pragma once

#include "ui/views/serving/serving_data.h"

#include <QString>

namespace kvscope::ui {

/// The layers in which a prompt was read: "layer 3", "layers 0 to 7".
QString layersText(const MemberRow& member, const QString& between);
/// Which requests an iteration served, and what bound its plan. members: of this iteration.
QString describeIteration(const IterationRow& iteration, const std::vector<MemberRow>& members);
/// Where the time before a request's token of this iteration went: to pauses of its own, and to what the iterations
/// since the token before it did for everybody. If it made no token there: what it was doing.
QString explainToken(const ServingData& data, const IterationRow& iteration, const std::vector<MemberRow>& members,
                     std::int64_t request);

} // namespace kvscope::ui
