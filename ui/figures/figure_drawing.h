// Draws a figure for print: a column wide, letters of 7 points, colours safe for colour-blind readers, every series
// also told apart by its mark, so that it survives grey print.
#pragma once

#include "ui/figures/figure.h"

#include <QImage>
#include <QSizeF>
#include <QString>

namespace kvscope::ui {

/// "85", "85mm": width; "85x60", "170x90mm": width and height. Height 0: chosen from the panels.
/// @throws Error(BadInput) outside 40 to 400 mm
QSizeF parseFigureSize(const std::string& text);

/// By suffix: .svg (text stays text), .pdf (fonts embedded) or .png (600 dots per inch). Needs a QApplication.
/// @throws Error(BadInput | Storage)
void writeFigure(const FigureData& data, const QString& path, QSizeF millimetres = {85, 0});

/// The same as an image.
QImage figurePicture(const FigureData& data, QSizeF millimetres);

} // namespace kvscope::ui
