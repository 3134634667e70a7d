// Logarithmic axes for plots that pan and zoom linearly: data are drawn at the logarithm, ticks carry the value.
#pragma once

#include <QString>

class QCPAxis;

namespace kvscope::ui {

/// Coordinates are log2 (base 2) or log10 (base 10) of the values. Ticks at powers of two, or 1, 2, 5 of a decade; at
/// round values where the range is too narrow for those. Numbers have their thousands separated.
void setLogAxis(QCPAxis* axis, const QString& title, int base);

} // namespace kvscope::ui
