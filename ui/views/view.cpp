#include "ui/views/view.h"

#include <QApplication>
#include <QClipboard>
#include <QPixmap>

namespace kvscope::ui {

void View::copyImage() { QApplication::clipboard()->setImage(grab().toImage()); }

} // namespace kvscope::ui
