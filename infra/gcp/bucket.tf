resource "google_storage_bucket" "results" {
  project  = var.project
  name     = coalesce(var.bucket, "${var.project}-rooflaunch")
  location = var.region

  # IAM alone decides, no object has a list of its own, and none can be made public.
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  force_destroy = var.delete_results_on_destroy
  labels        = { rooflaunch = "infra" }

  # A VM can overwrite objects (vm.tf says why): this is the way back.
  soft_delete_policy {
    retention_duration_seconds = var.soft_delete_days * 86400
  }

  lifecycle_rule {
    condition {
      age            = var.launches_delete_after_days
      matches_prefix = ["launches/"]
    }
    action {
      type = "Delete"
    }
  }

  dynamic "lifecycle_rule" {
    for_each = var.runs_delete_after_days == null ? [] : [var.runs_delete_after_days]
    content {
      condition {
        age            = lifecycle_rule.value
        matches_prefix = ["runs/"]
      }
      action {
        type = "Delete"
      }
    }
  }

  # Parts of uploads that nobody will finish. (Resumable uploads, which rooflaunch uses, end by themselves in a week.)
  lifecycle_rule {
    condition {
      age = 1
    }
    action {
      type = "AbortIncompleteMultipartUpload"
    }
  }

  depends_on = [google_project_service.this]
}
