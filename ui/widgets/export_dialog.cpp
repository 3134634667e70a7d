#include "ui/widgets/export_dialog.h"

#include "ui/frame/json_lines.h"
#include "ui/frame/number_tables.h"
#include "ui/frame/packed_name.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/view.h"
#include "ui/look/theme.h"

#include <QComboBox>
#include <QDir>
#include <QFileInfo>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QLabel>
#include <QPushButton>
#include <QSettings>
#include <QSpinBox>
#include <QStandardPaths>
#include <QVBoxLayout>

namespace kvscope::ui {
namespace {

constexpr QSize kPreviewBox{520, 360};
constexpr int kPreviewLines = 15;
constexpr int kRedrawMs = 150; // from the last change to a new preview; typed digits give one preview

struct Preset {
    const char* title;
    QSize size; // invalid: the size in the window, or a size that the user types
};
constexpr Preset kPresets[] = {
    {QT_TRANSLATE_NOOP("kvscope::ui::ExportDialog", "As in the window"), {}},
    {QT_TRANSLATE_NOOP("kvscope::ui::ExportDialog", "Screen, 1600 x 1000"), {1600, 1000}},
    {QT_TRANSLATE_NOOP("kvscope::ui::ExportDialog", "Slide, 1920 x 1080"), {1920, 1080}},
    {QT_TRANSLATE_NOOP("kvscope::ui::ExportDialog", "Page width, 960 x 600"), {960, 600}},
    {QT_TRANSLATE_NOOP("kvscope::ui::ExportDialog", "Column width, 640 x 480"), {640, 480}},
    {QT_TRANSLATE_NOOP("kvscope::ui::ExportDialog", "Own size"), {}},
};
constexpr int kAsInWindow = 0, kOwnSize = int(std::size(kPresets)) - 1;

} // namespace

QString exportSettingsFile() {
    return QDir(QStandardPaths::writableLocation(QStandardPaths::GenericConfigLocation))
        .filePath(QStringLiteral("kvscope/export.ini"));
}

ExportDialog::ExportDialog(View& view, const QString& suggested, const QString& settings, QWidget* parent)
    : QDialog(parent), view_(&view), suggested_(suggested), settings_(settings), format_(new QComboBox),
      table_(new QComboBox), preset_(new QComboBox), scale_(new QComboBox), theme_(new QComboBox), width_(new QSpinBox),
      height_(new QSpinBox), preview_(new QLabel), about_(new MutedLabel), status_(new QLabel),
      save_(new QPushButton(tr("Save…"))) {
    setWindowTitle(tr("Export View"));
    for (QLabel* label : {preview_, status_}) label->setTextFormat(Qt::PlainText); // file names may look like markup
    setAttribute(Qt::WA_DeleteOnClose);
    fillControls();
    layOut();
    recall();
    chooseSize();
    changed();
    redraw_.setSingleShot(true);
    redraw_.setInterval(kRedrawMs);
    follow();
    redraw_.start();
}

void ExportDialog::fillControls() {
    const auto name = [](QWidget* widget, const char* id, const QString& accessible) {
        widget->setObjectName(QLatin1String(id));
        widget->setAccessibleName(accessible);
    };
    name(format_, "exportFormat", tr("Format"));
    name(table_, "exportTable", tr("Numbers"));
    name(preset_, "exportPreset", tr("Size"));
    name(width_, "exportWidth", tr("Width in pixels"));
    name(height_, "exportHeight", tr("Height in pixels"));
    name(scale_, "exportScale", tr("Scale"));
    name(theme_, "exportTheme", tr("Theme"));
    name(preview_, "exportPreview", tr("Preview"));
    name(status_, "exportStatus", tr("Status"));
    name(save_, "exportSave", tr("Save"));
    format_->addItem(tr("PNG, pixels"), QStringLiteral("png"));
    format_->addItem(tr("SVG, for drawing programs"), QStringLiteral("svg"));
    format_->addItem(tr("PDF, for print and LaTeX"), QStringLiteral("pdf"));
    format_->addItem(tr("CSV, the numbers behind it"), QStringLiteral("csv"));
    format_->addItem(tr("JSON lines, the same for programs"), QStringLiteral("jsonl"));
    if (auto* tables = dynamic_cast<NumberTables*>(view_.data())) table_->addItems(tables->numberTables());
    for (const Preset& preset : kPresets) preset_->addItem(tr(preset.title));
    for (const int scale : {1, 2, 3, 4}) scale_->addItem(tr("%1 x").arg(scale), scale);
    scale_->setToolTip(tr("Pixels of the picture for each pixel of its size: 2 is sharp on most screens, 4 in print"));
    theme_->addItem(tr("As shown"), QString());
    theme_->addItem(tr("Light"), Theme::light().id);
    theme_->addItem(tr("Dark"), Theme::dark().id);
    for (QSpinBox* side : {width_, height_}) {
        side->setRange(kSmallestPicture, kLargestPicture);
        side->setSuffix(tr(" px"));
    }
    preview_->setFixedSize(kPreviewBox);
    preview_->setAlignment(Qt::AlignCenter);
    about_->setWordWrap(true);
    status_->setWordWrap(true);
    status_->setTextInteractionFlags(Qt::TextSelectableByMouse);
    save_->setDefault(true);
}

void ExportDialog::layOut() {
    auto* size = new QHBoxLayout;
    size->addWidget(width_, 1);
    size->addWidget(new QLabel(QStringLiteral("×")));
    size->addWidget(height_, 1);
    auto* form = new QFormLayout;
    form->addRow(tr("Format"), format_);
    if (table_->count() > 1)
        form->addRow(tr("Numbers"), table_);
    else
        table_->setParent(this), table_->hide();
    form->addRow(tr("Size"), preset_);
    form->addRow(QString(), size);
    form->addRow(tr("Scale"), scale_);
    form->addRow(tr("Theme"), theme_);
    auto* left = new QVBoxLayout;
    left->addLayout(form);
    left->addWidget(about_);
    left->addStretch();
    auto* top = new QHBoxLayout;
    top->addLayout(left);
    top->addWidget(preview_);
    auto* close = new QPushButton(tr("Close"));
    connect(close, &QPushButton::clicked, this, &QDialog::reject);
    auto* buttons = new QHBoxLayout;
    buttons->addStretch();
    buttons->addWidget(close);
    buttons->addWidget(save_);
    auto* body = new QVBoxLayout(this);
    body->addLayout(top);
    body->addWidget(status_);
    body->addLayout(buttons);
}

void ExportDialog::follow() {
    connect(&redraw_, &QTimer::timeout, this, &ExportDialog::preview);
    connect(save_, &QPushButton::clicked, this, &ExportDialog::chooseFile);
    connect(preset_, &QComboBox::currentIndexChanged, this, &ExportDialog::chooseSize);
    for (QSpinBox* side : {width_, height_}) {
        connect(side, &QSpinBox::valueChanged, this, &ExportDialog::changed);
        connect(side, &QSpinBox::editingFinished, this, [this] {
            if (QSize(width_->value(), height_->value()) != kPresets[preset_->currentIndex()].size &&
                preset_->currentIndex() != kAsInWindow)
                preset_->setCurrentIndex(kOwnSize);
        });
    }
    connect(&lines_, &NumbersPreview::ready, this, &ExportDialog::showLines);
    for (QComboBox* box : {format_, table_, scale_, theme_})
        connect(box, &QComboBox::currentIndexChanged, this, &ExportDialog::changed);
    connect(view_, &View::numbersExported, this, [this](const QString& path, const QString& problem, bool cancelled) {
        if (path.isEmpty() || path != writing_) return; // the view has ended an export that this dialog did not start
        writing_.clear();
        ended(path, cancelled ? tr("Stopped; nothing was written.") : problem);
    });
    connect(view_, &QObject::destroyed, this, &QDialog::reject); // the window of the view was closed
}

void ExportDialog::chooseSize() {
    const int index = preset_->currentIndex();
    const QSize size = index == kAsInWindow && view_ ? view_->size() : kPresets[index].size;
    for (QSpinBox* side : {width_, height_}) side->setEnabled(index == kOwnSize);
    if (size.isValid() && !size.isEmpty()) {
        width_->setValue(size.width());
        height_->setValue(size.height());
    }
}

void ExportDialog::changed() {
    const bool numbers = isNumbers(format()), pixels = format() == QLatin1String("png");
    for (QWidget* control : {static_cast<QWidget*>(preset_), static_cast<QWidget*>(theme_)})
        control->setEnabled(!numbers);
    for (QSpinBox* side : {width_, height_}) side->setEnabled(!numbers && preset_->currentIndex() == kOwnSize);
    scale_->setEnabled(pixels);
    table_->setEnabled(numbers);
    const PictureStyle wanted = style();
    if (pixels)
        about_->setText(tr("%1 × %2 pixels in the file")
                            .arg(int(wanted.size.width() * wanted.scale))
                            .arg(int(wanted.size.height() * wanted.scale)));
    else if (numbers)
        about_->setText(table_->count() > 1 ? tr("A row per line, with a header")
                                            : tr("What the plot shows, a row per line, with a header"));
    else
        about_->setText(tr("%1 × %2 mm, text stays text")
                            .arg(wanted.size.width() * 25.4 / 96, 0, 'f', 0)
                            .arg(wanted.size.height() * 25.4 / 96, 0, 'f', 0));
    status_->clear();
    redraw_.start();
}

bool ExportDialog::isNumbers(const QString& format) {
    return format == QLatin1String("csv") || format == QLatin1String("jsonl");
}

PictureStyle ExportDialog::style() const {
    PictureStyle style;
    style.size = {width_->value(), height_->value()};
    style.scale = format() == QLatin1String("png") ? scale_->currentData().toDouble() : 1;
    style.theme = theme_->currentData().toString();
    return style;
}

QString ExportDialog::format() const { return format_->currentData().toString(); }

void ExportDialog::preview() {
    if (!view_) return;
    if (isNumbers(format())) {
        preview_->setPixmap({});
        preview_->setText(tr("Reading…"));
        save_->setEnabled(false);
        lines_.ask(numbers(), kPreviewLines); // showLines is called with the lines
        return;
    }
    lines_.stop();
    preview_->setAlignment(Qt::AlignCenter);
    const qreal ratio = devicePixelRatioF();
    QPixmap picture = QPixmap::fromImage(previewPicture(*view_, style(), (QSizeF(kPreviewBox) * ratio).toSize()));
    picture.setDevicePixelRatio(ratio);
    save_->setEnabled(!picture.isNull());
    preview_->setPixmap(picture);
    if (picture.isNull()) preview_->setText(tr("This size cannot be drawn."));
    emit previewed();
}

void ExportDialog::showLines(const QString& csv, const QString& problem) {
    QString lines = csv;
    if (!csv.isEmpty() && format() == QLatin1String("jsonl"))
        lines = QString::fromStdString(JsonLines().convert(csv.toStdString()));
    save_->setEnabled(!csv.isEmpty());
    preview_->setAlignment(lines.isEmpty() ? Qt::AlignCenter : Qt::AlignLeft | Qt::AlignTop);
    preview_->setText(!problem.isEmpty() ? problem
                      : lines.isEmpty()  ? tr("This view has no numbers to export yet.")
                                         : lines.left(1200));
    emit previewed();
}

/// The numbers of the table that is chosen in the dialog. The view goes back to its own table, which is number 0.
NumberWriter ExportDialog::numbers() const {
    auto* tables = dynamic_cast<NumberTables*>(view_.data());
    if (tables) tables->chooseNumberTable(std::max(0, table_->currentIndex()));
    NumberWriter chosen = view_->numbers();
    if (tables) tables->chooseNumberTable(0);
    return chosen;
}

/// All formats, the chosen one first. If the user types a name with the suffix of another format, the file gets that
/// format.
std::vector<FileFormat> ExportDialog::formats() const {
    std::vector<FileFormat> all;
    const auto add = [&](int index) {
        const QString suffix = format_->itemData(index).toString();
        const FileFormat format{suffix.toUpper(), suffix};
        const auto kinds = isNumbers(suffix) ? withCompressed({format}) : std::vector<FileFormat>{format};
        all.insert(all.end(), kinds.begin(), kinds.end());
    };
    add(format_->currentIndex());
    for (int index = 0; index < format_->count(); ++index)
        if (index != format_->currentIndex()) add(index);
    return all;
}

void ExportDialog::chooseFile() {
    const QString path = askSavePath(this, tr("Export the view"), suggested_ + QLatin1Char('.') + format(), formats());
    if (!path.isEmpty()) save(path);
}

bool ExportDialog::save(const QString& wanted) {
    if (!view_) return false;
    const QString path = completeName(wanted, formats(), 0);
    if (isNumbers(QFileInfo(unpackedName(path)).suffix().toLower())) {
        status_->setText(tr("Writing %1").arg(path));
        writing_ = path;
        auto* tables = dynamic_cast<NumberTables*>(view_.data());
        if (tables) tables->chooseNumberTable(std::max(0, table_->currentIndex()));
        view_->exportNumbers(path); // the view goes on writing when the dialog is closed
        if (tables) tables->chooseNumberTable(0);
        return true;
    }
    const QString problem = writePicture(*view_, path, style());
    ended(path, problem);
    return problem.isEmpty();
}

void ExportDialog::ended(const QString& path, const QString& problem) {
    status_->setText(problem.isEmpty() ? tr("Saved %1").arg(path) : problem);
    if (!problem.isEmpty()) return;
    suggested_ = QFileInfo(path).absolutePath() + QLatin1Char('/') + QFileInfo(unpackedName(path)).completeBaseName();
    if (!remember())
        status_->setText(
            tr("Saved %1; what was chosen here is not kept for the next time, because %2 could not be written")
                .arg(path, QDir::toNativeSeparators(settings_)));
    emit saved(path);
}

/// @return false: the settings could not be written
bool ExportDialog::remember() const {
    if (settings_.isEmpty()) return true;
    QSettings settings(settings_, QSettings::IniFormat);
    settings.setValue("export/format", format());
    settings.setValue("export/preset", preset_->currentIndex());
    settings.setValue("export/size", QSize(width_->value(), height_->value()));
    settings.setValue("export/scale", scale_->currentData());
    settings.setValue("export/theme", theme_->currentData());
    settings.setValue("export/folder", QFileInfo(suggested_).absolutePath());
    settings.sync();
    return settings.status() != QSettings::AccessError;
}

void ExportDialog::recall() {
    scale_->setCurrentIndex(1);
    if (settings_.isEmpty()) return;
    const QSettings settings(settings_, QSettings::IniFormat);
    const auto choose = [&](QComboBox* box, const char* key) {
        if (const int index = box->findData(settings.value(key)); index >= 0) box->setCurrentIndex(index);
    };
    choose(format_, "export/format");
    if (settings.contains("export/scale"))
        scale_->setCurrentIndex(std::max(0, scale_->findData(settings.value("export/scale").toInt())));
    choose(theme_, "export/theme");
    const int preset = settings.value("export/preset", kAsInWindow).toInt();
    preset_->setCurrentIndex(preset >= 0 && preset <= kOwnSize ? preset : kAsInWindow);
    const QSize size = settings.value("export/size").toSize();
    if (size.isValid()) {
        width_->setValue(size.width());
        height_->setValue(size.height());
    }
    const QString folder = settings.value("export/folder").toString();
    if (!folder.isEmpty() && QFileInfo(folder).isDir())
        suggested_ = folder + QLatin1Char('/') + QFileInfo(suggested_).fileName();
}

} // namespace kvscope::ui
