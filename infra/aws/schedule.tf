# With this role EventBridge Scheduler ends a VM at its time limit. It can end only instances that carry our tag.
data "aws_iam_policy_document" "schedule_trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["scheduler.amazonaws.com"]
    }

    # Schedules of other accounts cannot use it.
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [local.account]
    }
  }
}

data "aws_iam_policy_document" "schedule" {
  statement {
    sid       = "EndOurInstances"
    actions   = ["ec2:TerminateInstances"]
    resources = ["${local.ec2}:instance/*"]

    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/${local.tag}"
      values   = ["launch"]
    }
  }
}

resource "aws_iam_role" "schedule" {
  name               = "rooflaunch-schedule"
  description        = "Schedules of launch aws: end VMs at their time limit"
  assume_role_policy = data.aws_iam_policy_document.schedule_trust.json
}

resource "aws_iam_role_policy" "schedule" {
  name   = "rooflaunch-schedule"
  role   = aws_iam_role.schedule.id
  policy = data.aws_iam_policy_document.schedule.json
}
