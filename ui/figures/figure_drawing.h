// Draws a figure for print: as wide as a column of a paper, with letters of 7 points, in colours that colour-blind
// readers can tell apart. Series also differ by their marks, so that a grey print shows them too.
#pragma once

#include "ui/figures/figure.h"

#include <QImage>
#include <QSizeF>
#include <QString>

namespace kvscope::ui {

/// Parses a size in millimetres: "85" or "85mm" is a width; "85x60" or "170x90mm" is width and height. A height of 0 is
/// chosen from the panels. @throws Error(BadInput) if a length is not within 40 to 400 mm
QSizeF parseFigureSize(const std::string& text);

/// Writes a figure in the format that the file's suffix names: .svg with text as text, .pdf with embedded fonts, or
/// .png with 600 dots per inch. Needs a QApplication. @throws Error(BadInput | Storage)
void writeFigure(const FigureData& data, const QString& path, QSizeF millimetres = {85, 0});

/// Draws a figure into an image, for a preview.
QImage figurePicture(const FigureData& data, QSizeF millimetres);

} // namespace kvscope::ui
