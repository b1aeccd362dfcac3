# What a person needs for `launch aws`, status, logs, down, reap and doctor; an administrator of the account has it already.
data "aws_iam_policy_document" "launcher" {
  # Actions that only look, and for which IAM knows no narrower resource.
  statement {
    sid = "Look"
    actions = [
      "ec2:DescribeAvailabilityZones",
      "ec2:DescribeImages",
      "ec2:DescribeInstanceTypeOfferings",
      "ec2:DescribeInstances",
      "ec2:DescribeSecurityGroups",
      "ec2:DescribeSpotPriceHistory",
      "ec2:DescribeSubnets",
      "ec2:DescribeVolumes",
      "ec2:DescribeVpcs",
      "ecr:GetAuthorizationToken",
      "scheduler:ListSchedules",
      "servicequotas:GetAWSDefaultServiceQuota",
      "servicequotas:GetServiceQuota",
    ]
    resources = ["*"]
  }

  # Where the AMI's id is: with AWS, or in a parameter of one's own for the setting `ami_parameter`. Others may be secrets.
  statement {
    sid     = "FindImage"
    actions = ["ssm:GetParameter"]
    resources = [
      "arn:${local.partition}:ssm:${var.region}::parameter/aws/service/*",
      "arn:${local.partition}:ssm:${var.region}:${local.account}:parameter/rooflaunch/*",
    ]
  }

  # What an instance is made of, and what is there already.
  statement {
    sid     = "StartFrom"
    actions = ["ec2:RunInstances"]
    resources = [
      "${local.ec2}:security-group/*",
      "${local.ec2}:subnet/*",
      # Images of AWS have no account in their names.
      "arn:${local.partition}:ec2:${var.region}::image/ami-*",
    ]
  }

  # What an instance makes must carry our tag from the start.
  statement {
    sid       = "Start"
    actions   = ["ec2:RunInstances"]
    resources = local.made

    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/${local.tag}"
      values   = ["launch"]
    }
  }

  statement {
    sid       = "TagAtStart"
    actions   = ["ec2:CreateTags"]
    resources = local.made

    condition {
      test     = "StringEquals"
      variable = "ec2:CreateAction"
      values   = ["RunInstances"]
    }
  }

  # The end that the schedule sets: the VM starts no work before it has this tag.
  statement {
    sid       = "TagWithEnd"
    actions   = ["ec2:CreateTags"]
    resources = ["${local.ec2}:instance/*"]

    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/${local.tag}"
      values   = ["launch"]
    }

    condition {
      test     = "ForAllValues:StringEquals"
      variable = "aws:TagKeys"
      values   = ["rooflaunch-ends"]
    }
  }

  statement {
    sid       = "FollowAndEnd"
    actions   = ["ec2:DeleteVolume", "ec2:GetConsoleOutput", "ec2:TerminateInstances"]
    resources = ["${local.ec2}:instance/*", "${local.ec2}:volume/*"]

    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/${local.tag}"
      values   = ["launch"]
    }
  }

  statement {
    sid       = "ScheduleEnd"
    actions   = ["scheduler:CreateSchedule", "scheduler:DeleteSchedule"]
    resources = ["arn:${local.partition}:scheduler:${var.region}:${local.account}:schedule/default/rooflaunch-i-*"]
  }

  statement {
    sid       = "GiveRoleToVm"
    actions   = ["iam:PassRole"]
    resources = [aws_iam_role.vm.arn]

    condition {
      test     = "StringEquals"
      variable = "iam:PassedToService"
      values   = ["ec2.amazonaws.com"]
    }
  }

  statement {
    sid       = "GiveRoleToSchedule"
    actions   = ["iam:PassRole"]
    resources = [aws_iam_role.schedule.arn]

    condition {
      test     = "StringEquals"
      variable = "iam:PassedToService"
      values   = ["scheduler.amazonaws.com"]
    }
  }

  # EC2 makes this role of its own at the account's first request for a spot instance.
  statement {
    sid       = "FirstSpotInstance"
    actions   = ["iam:CreateServiceLinkedRole"]
    resources = ["arn:${local.partition}:iam::${local.account}:role/aws-service-role/spot.amazonaws.com/*"]

    condition {
      test     = "StringEquals"
      variable = "iam:AWSServiceName"
      values   = ["spot.amazonaws.com"]
    }
  }

  statement {
    sid       = "ListResults"
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.results.arn]
  }

  statement {
    sid       = "ReadAndWriteResults"
    actions   = ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"]
    resources = ["${aws_s3_bucket.results.arn}/*"]
  }

  # Values of --env are erased with all older versions.
  statement {
    sid       = "EraseVariables"
    actions   = ["s3:DeleteObjectVersion"]
    resources = ["${aws_s3_bucket.results.arn}/launches/variables/*"]
  }

  statement {
    sid       = "FindVersions"
    actions   = ["s3:ListBucketVersions"]
    resources = [aws_s3_bucket.results.arn]
  }

  statement {
    sid = "PushImages"
    actions = [
      "ecr:BatchCheckLayerAvailability",
      "ecr:BatchGetImage",
      "ecr:CompleteLayerUpload",
      "ecr:DescribeRepositories",
      "ecr:GetDownloadUrlForLayer",
      "ecr:InitiateLayerUpload",
      "ecr:PutImage",
      "ecr:UploadLayerPart",
    ]
    resources = [aws_ecr_repository.images.arn]
  }

  # What `launch doctor aws` asks for.
  statement {
    sid       = "CheckRoles"
    actions   = ["iam:GetInstanceProfile", "iam:GetRole"]
    resources = [aws_iam_instance_profile.vm.arn, aws_iam_role.schedule.arn]
  }
}

locals {
  made = [
    "${local.ec2}:instance/*",
    "${local.ec2}:network-interface/*",
    "${local.ec2}:spot-instances-request/*",
    "${local.ec2}:volume/*",
  ]
}

resource "aws_iam_policy" "launcher" {
  name        = "rooflaunch-launcher"
  description = "Start, follow and end VMs of launch aws"
  policy      = data.aws_iam_policy_document.launcher.json
}

resource "aws_iam_user_policy_attachment" "launchers" {
  for_each = var.launchers

  user       = each.value
  policy_arn = aws_iam_policy.launcher.arn
}
