#include "ui/widgets/serve_dialog.h"

#include "core/model/model.h"
#include "ui/frame/as_written.h"
#include "ui/frame/dialog_size.h"
#include "ui/frame/small_widgets.h"
#include "ui/look/theme.h"
#include "ui/widgets/form_helpers.h"
#include "ui/widgets/serve_form.h"

#include <QClipboard>
#include <QDir>
#include <QEvent>
#include <QFileInfo>
#include <QFontDatabase>
#include <QFormLayout>
#include <QGuiApplication>
#include <QHBoxLayout>
#include <QLineEdit>
#include <QPlainTextEdit>
#include <QPushButton>
#include <QSplitter>
#include <QVBoxLayout>

#include <utility>

namespace kvscope::ui {
namespace {

constexpr int kLinesKept = 2000;

} // namespace

ServeDialog::ServeDialog(ServerProcess& server, QWidget* parent) : QDialog(parent), server_(server) {
    setObjectName(QStringLiteral("serveDialog"));
    setWindowTitle(tr("Serve"));
    form_ = new ServeForm;
    auto* columns = new QSplitter;
    columns->setObjectName(QStringLiteral("serveColumns"));
    columns->setChildrenCollapsible(false);
    columns->setHandleWidth(1);
    columns->addWidget(form_);
    columns->addWidget(makeServer());
    columns->setStretchFactor(0, 0);
    columns->setStretchFactor(1, 1);
    columns->setSizes({400, 560});
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(16, 14, 16, 14);
    layout->setSpacing(10);
    layout->addWidget(columns, 1);
    makeFooter(layout);
    setMinimumSize(640, 400);
    resizeOnScreen(*this, {980, 660});
    connect(form_, &ServeForm::changed, this, &ServeDialog::revalidate);
    connect(&server_, &ServerProcess::changed, this, &ServeDialog::showServer);
    connect(&server_, &ServerProcess::logged, log_, &QPlainTextEdit::appendPlainText);
    showServer();
}

void ServeDialog::setModel(const QString& nameOrPath, std::shared_ptr<const Model> model) {
    form_->setModel(nameOrPath, std::move(model), !server_.isRunning());
}
void ServeDialog::setRecordModelPath(bool record) { form_->setRecordModelPath(record); }
ServerRequest ServeDialog::request() const { return form_->request(); }
QVariantMap ServeDialog::values() const { return form_->values(); }
void ServeDialog::setValues(const QVariantMap& values) { form_->setValues(values); }

QWidget* ServeDialog::makeAddressRow(QLineEdit*& line, QPushButton*& copy, const char* name, const QString& title) {
    auto* row = new QWidget;
    auto* layout = new QHBoxLayout(row);
    layout->setContentsMargins(0, 0, 0, 0);
    line = new QLineEdit;
    line->setObjectName(QLatin1String(name));
    line->setReadOnly(true);
    line->setAccessibleName(title);
    line->setFont(QFontDatabase::systemFont(QFontDatabase::FixedFont));
    copy = new QPushButton(tr("Copy"));
    copy->setObjectName(QLatin1String(name) + QStringLiteral("Copy"));
    copy->setAccessibleName(tr("Copy: %1").arg(title));
    copy->setToolTip(tr("Copy: %1").arg(title));
    copy->setAutoDefault(false);
    connect(copy, &QPushButton::clicked, this, [line] { QGuiApplication::clipboard()->setText(line->text()); });
    layout->addWidget(line, 1);
    layout->addWidget(copy);
    return row;
}

QWidget* ServeDialog::makeServer() {
    auto* right = new QWidget;
    auto* layout = new QVBoxLayout(right);
    layout->setContentsMargins(14, 4, 0, 0);
    layout->setSpacing(8);
    dot_ = new QLabel(QStringLiteral("●"));
    dot_->setObjectName(QStringLiteral("serveDot"));
    state_ = new QLabel;
    state_->setObjectName(QStringLiteral("serveState"));
    state_->setTextFormat(Qt::PlainText);
    state_->setProperty("role", QStringLiteral("title"));
    auto* heading = new QHBoxLayout;
    heading->addWidget(dot_);
    heading->addWidget(state_, 1);
    layout->addLayout(heading);
    sentence_ = addMuted(layout, "serveSentence");
    sentence_->setTextInteractionFlags(Qt::TextSelectableByMouse);
    sentence_->setMinimumHeight(2 * sentence_->fontMetrics().lineSpacing());
    sentence_->setAlignment(Qt::AlignTop | Qt::AlignLeft);
    auto* form = new QFormLayout;
    form->setHorizontalSpacing(8);
    form->setVerticalSpacing(6);
    form->setFieldGrowthPolicy(QFormLayout::AllNonFixedFieldsGrow);
    form->addRow(tr("Clients use"), makeAddressRow(url_, copyUrl_, "serveUrl", tr("the server's address for clients")));
    form->addRow(tr("Try it"), makeAddressRow(curl_, copyCurl_, "serveCurl", tr("a curl line that asks the server")));
    layout->addLayout(form);
    auto* title = new MutedLabel(tr("What the server says"));
    layout->addWidget(title);
    log_ = new QPlainTextEdit;
    log_->setObjectName(QStringLiteral("serveLog"));
    log_->setAccessibleName(tr("What the server says"));
    log_->setReadOnly(true);
    log_->setTabChangesFocus(true);
    log_->setMaximumBlockCount(kLinesKept);
    log_->setFont(QFontDatabase::systemFont(QFontDatabase::FixedFont));
    log_->setPlaceholderText(
        tr("Nothing yet. The server starts with the command line that would start it in a terminal."));
    layout->addWidget(log_, 1);
    right->setMinimumWidth(260);
    return right;
}

void ServeDialog::makeFooter(QVBoxLayout* layout) {
    reason_ = new MutedLabel;
    reason_->setObjectName(QStringLiteral("serveReason"));
    reason_->setWordWrap(true);
    start_ = new QPushButton(tr("Start Server"));
    start_->setObjectName(QStringLiteral("serveStart"));
    start_->setDefault(true);
    stop_ = new QPushButton(tr("Stop"));
    stop_->setObjectName(QStringLiteral("serveStop"));
    stop_->setAutoDefault(false);
    auto* hide = new QPushButton(tr("Close"));
    hide->setObjectName(QStringLiteral("serveClose"));
    hide->setAutoDefault(false);
    hide->setToolTip(tr("Close this dialog; a server that runs goes on, and the status bar says so"));
    connect(start_, &QPushButton::clicked, this, [this] {
        revalidate();
        if (!problem_.isEmpty()) return;
        log_->clear();
        server_.start(request());
    });
    connect(stop_, &QPushButton::clicked, &server_, &ServerProcess::stop);
    connect(hide, &QPushButton::clicked, this, &QDialog::hide);
    auto* row = new QHBoxLayout;
    row->addWidget(reason_, 1);
    row->addWidget(hide);
    row->addWidget(stop_);
    row->addWidget(start_);
    layout->addLayout(row);
}

QString ServeDialog::findProblem() const {
    if (server_.isRunning()) return tr("A server runs. Stop it before you start another one.");
    if (!QFileInfo(server_.program()).isExecutable())
        return tr("%1 is not there. The server is the program kvscope-cli, which lies beside this one.")
            .arg(QDir::toNativeSeparators(server_.program()));
    return form_->problem();
}

void ServeDialog::revalidate() {
    problem_ = findProblem();
    reason_->setText(server_.isRunning() ? QString() : problem_);
    start_->setEnabled(problem_.isEmpty());
    start_->setToolTip(problem_.isEmpty() ? tr("Start kvscope-cli serve and record it; the window shows it live")
                                          : asWritten(problem_));
}

void ServeDialog::showServer() {
    using State = ServerProcess::State;
    const Theme& theme = Theme::current();
    const auto [title, colour] = [&]() -> std::pair<QString, QColor> {
        switch (server_.state()) {
        case State::Off:
            return {tr("No server runs"), theme.mutedText};
        case State::Loading:
            return {tr("Loading"), theme.warning};
        case State::Ready:
            return {tr("Ready"), theme.ok};
        case State::Stopping:
            return {tr("Stopping"), theme.warning};
        case State::Ended:
            return {tr("Ended"), theme.mutedText};
        case State::Failed:
            break;
        }
        return {tr("Failed"), theme.danger};
    }();
    const bool running = server_.isRunning();
    dot_->setStyleSheet(QStringLiteral("color: %1;").arg(colour.name()));
    state_->setText(title);
    sentence_->setText(server_.state() == State::Off
                           ? tr("Start one, and point clients of OpenAI's API at its address. It is recorded while it "
                                "answers, and the window shows its requests live.")
                           : server_.sentence());
    const QString url = server_.address().isEmpty() ? QString() : server_.address() + QStringLiteral("/v1");
    url_->setText(url);
    url_->setCursorPosition(0);
    curl_->setText(server_.curlLine());
    curl_->setCursorPosition(0);
    curl_->setToolTip(asWritten(server_.curlLine()));
    for (QWidget* widget : std::initializer_list<QWidget*>{url_, copyUrl_, curl_, copyCurl_})
        widget->setEnabled(!url.isEmpty());
    form_->widget()->setEnabled(!running);
    start_->setVisible(!running);
    stop_->setVisible(running);
    const bool stopping = server_.state() == State::Stopping;
    stop_->setText(stopping ? tr("Stop Now") : tr("Stop"));
    stop_->setToolTip(stopping ? tr("Cancel the requests that still run")
                               : tr("Admit nothing more; requests that run have 30 s to end"));
    revalidate();
}

void ServeDialog::changeEvent(QEvent* event) {
    QDialog::changeEvent(event);
    if (event->type() == QEvent::PaletteChange && dot_ != nullptr && stop_ != nullptr) showServer();
}

} // namespace kvscope::ui
