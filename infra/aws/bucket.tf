resource "aws_s3_bucket" "results" {
  bucket        = coalesce(var.bucket, "rooflaunch-${local.account}-${var.region}")
  force_destroy = var.delete_results_on_destroy
}

# IAM alone decides: no object has a list of its own, and none can be made public.
resource "aws_s3_bucket_ownership_controls" "results" {
  bucket = aws_s3_bucket.results.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_public_access_block" "results" {
  bucket                  = aws_s3_bucket.results.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "results" {
  bucket = aws_s3_bucket.results.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

# A VM can overwrite objects: older versions are the way back.
resource "aws_s3_bucket_versioning" "results" {
  bucket = aws_s3_bucket.results.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "results" {
  bucket = aws_s3_bucket.results.id

  # Parts of uploads that nobody will finish cost money, and no listing of objects shows them.
  rule {
    id     = "broken-uploads"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }

  rule {
    id     = "older-versions"
    status = "Enabled"
    filter {}
    noncurrent_version_expiration {
      noncurrent_days = var.older_versions_days
    }
  }

  rule {
    id     = "launches"
    status = "Enabled"
    filter {
      prefix = "launches/"
    }
    expiration {
      days = var.launches_delete_after_days
    }
  }

  dynamic "rule" {
    for_each = var.runs_delete_after_days == null ? [] : [var.runs_delete_after_days]
    content {
      id     = "runs"
      status = "Enabled"
      filter {
        prefix = "runs/"
      }
      expiration {
        days = rule.value
      }
    }
  }

  depends_on = [aws_s3_bucket_versioning.results]
}

data "aws_iam_policy_document" "bucket" {
  statement {
    sid       = "EncryptedConnectionsOnly"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.results.arn, "${aws_s3_bucket.results.arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

resource "aws_s3_bucket_policy" "results" {
  bucket = aws_s3_bucket.results.id
  policy = data.aws_iam_policy_document.bucket.json

  depends_on = [aws_s3_bucket_public_access_block.results]
}
