resource "google_artifact_registry_repository" "images" {
  project       = var.project
  location      = var.region
  repository_id = var.repository
  format        = "DOCKER"
  description   = "Images of rooflaunch's trainer"
  labels        = { rooflaunch = "infra" }

  cleanup_policies {
    id     = "delete-old"
    action = "DELETE"
    condition {
      tag_state  = "ANY"
      older_than = "${var.images_delete_after_days * 86400}s"
    }
  }

  # A policy that keeps wins over one that deletes.
  cleanup_policies {
    id     = "keep-newest"
    action = "KEEP"
    most_recent_versions {
      keep_count = var.images_keep
    }
  }

  depends_on = [google_project_service.this]
}
