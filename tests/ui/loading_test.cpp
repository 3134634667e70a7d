// Loading a model in the desktop: progress, Cancel, and what is left of it.
#include "tests/core/many_tokens.h"
#include "tests/profiler/temporary_folder.h"
#include "ui/frame/workspace.h"
#include "ui/session/session_controller.h"

#include <QSignalSpy>
#include <QTest>
#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using State = SessionController::State;

class LoadingInTheDesktop : public ::testing::Test {
protected:
    LoadingInTheDesktop() : path_((folder_ / "model.gguf").string()) {}
    /// Until the controller has nothing more to do.
    bool settled() {
        return QTest::qWaitFor([&] { return begun_ && controller_.state() == State::Idle; }, 120'000);
    }
    void load() {
        begun_ = false;
        QObject::connect(&controller_, &SessionController::stateChanged, &workspace_,
                         [this] { begun_ = begun_ || controller_.state() == State::Loading; });
        controller_.loadModel(QString::fromStdString(path_));
    }

    test::Folder folder_;
    const std::string path_;
    bool begun_ = false;
    Workspace workspace_;
    SessionController controller_{workspace_};
};

TEST_F(LoadingInTheDesktop, ShowsHowFarItIs) {
    test::writeModelOfManyTokens(path_, 20'000);
    QSignalSpy progress(&controller_, &SessionController::progress),
        loaded(&controller_, &SessionController::modelLoaded);
    load();
    ASSERT_TRUE(settled());
    ASSERT_EQ(loaded.size(), 1);
    ASSERT_GE(progress.size(), 2);
    EXPECT_EQ(progress.front()[0].toDouble(), 0.0);
    EXPECT_EQ(progress.back()[0].toDouble(), 1.0);
    for (const QList<QVariant>& report : progress) EXPECT_FALSE(report[1].toString().isEmpty());
    EXPECT_EQ(controller_.model()->config().vocab, 20'000);
}

/// A machine may load a file before Cancel is pressed: then the file was too small.
TEST_F(LoadingInTheDesktop, CancelLeavesTheModelThatWasThere) {
    test::writeModelOfManyTokens(path_, 1000);
    load();
    ASSERT_TRUE(settled());
    const auto before = controller_.model();
    QSignalSpy failed(&controller_, &SessionController::failed), loaded(&controller_, &SessionController::modelLoaded);
    bool cancelled = false;
    for (std::uint32_t tokens = 250'000; tokens <= 4'000'000 && !cancelled; tokens *= 2) {
        const QString path = QString::fromStdString((folder_ / ("large" + std::to_string(tokens) + ".gguf")).string());
        test::writeModelOfManyTokens(path.toStdString(), tokens);
        begun_ = false;
        loaded.clear();
        const auto once = QObject::connect(&controller_, &SessionController::progress, &workspace_,
                                           [this](double, const QString&) { controller_.stop(); });
        controller_.loadModel(path);
        ASSERT_TRUE(settled());
        QObject::disconnect(once);
        cancelled = loaded.isEmpty();
    }
    EXPECT_TRUE(cancelled);
    EXPECT_TRUE(failed.isEmpty()) << failed[0][0].toString().toStdString();
    // The controller is fit for use: the small model loads again.
    begun_ = false;
    controller_.loadModel(QString::fromStdString(path_));
    ASSERT_TRUE(settled());
    EXPECT_EQ(loaded.size(), 1);
    EXPECT_EQ(controller_.model()->config().vocab, before->config().vocab);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
