// Logarithmic axes. Plots pan and zoom linearly, so they draw data at the logarithms, and the ticks show the values.
#pragma once

#include <QString>

class QCPAxis;

namespace kvscope::ui {

/// Makes an axis whose coordinates are log2 (base 2) or log10 (base 10) of the values. Ticks lie at powers of two, or
/// at 1, 2 and 5 of each decade; in a range too narrow for these, they lie at round values. Thousands are separated.
void setLogAxis(QCPAxis* axis, const QString& title, int base);

} // namespace kvscope::ui
