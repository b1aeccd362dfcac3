# What a VM may do. Whoever gets into one (it runs code from an image) can do this, and no more. It needs no right on EC2:
# it powers itself off, and EC2 then terminates it.
data "aws_iam_policy_document" "vm_trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "vm" {
  # Without s3:ListBucket S3 answers 403, not 404, for an object that does not exist.
  statement {
    sid       = "ListResults"
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.results.arn]
  }

  # No s3:DeleteObject: what a VM overwrites comes back.
  statement {
    sid       = "WriteResults"
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

  # A token belongs to no repository.
  statement {
    sid       = "LogInToRegistry"
    actions   = ["ecr:GetAuthorizationToken"]
    resources = ["*"]
  }

  statement {
    sid       = "PullImages"
    actions   = ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    resources = [aws_ecr_repository.images.arn]
  }
}

resource "aws_iam_role" "vm" {
  name               = "rooflaunch-vm"
  description        = "VMs of launch aws: pull the image, write results"
  assume_role_policy = data.aws_iam_policy_document.vm_trust.json
}

resource "aws_iam_role_policy" "vm" {
  name   = "rooflaunch-vm"
  role   = aws_iam_role.vm.id
  policy = data.aws_iam_policy_document.vm.json
}

resource "aws_iam_instance_profile" "vm" {
  name = "rooflaunch-vm"
  role = aws_iam_role.vm.name
}
