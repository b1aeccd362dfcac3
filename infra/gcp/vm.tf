# What a VM may do. Whoever gets into one (it runs code from an image) can do this, and no more.
resource "google_service_account" "vm" {
  project      = var.project
  account_id   = "rooflaunch-vm"
  display_name = "rooflaunch VMs: pull the image, write results, delete themselves"

  depends_on = [google_project_service.this]
}

# Write bundles and heartbeats. Not objectCreator: status.json is overwritten, which takes storage.objects.delete, and
# an upload that goes on after a crash lists and reads what is there.
resource "google_storage_bucket_iam_member" "vm_results" {
  bucket = google_storage_bucket.results.name
  role   = "roles/storage.objectUser"
  member = google_service_account.vm.member
}

# Pull images, from this repository alone.
resource "google_artifact_registry_repository_iam_member" "vm_images" {
  project    = var.project
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.reader"
  member     = google_service_account.vm.member
}

# Read the own physical host, and delete itself. No predefined role has so little.
resource "google_project_iam_custom_role" "vm" {
  project     = var.project
  role_id     = "rooflaunchVm${var.role_suffix}"
  title       = "rooflaunch VM"
  description = "Look at and delete an instance"
  permissions = [
    "compute.instances.delete",
    "compute.instances.get",
  ]

  depends_on = [google_project_service.this]
}

# IAM has no "itself": the name's start is as near as it gets.
resource "google_project_iam_member" "vm_itself" {
  project = var.project
  role    = google_project_iam_custom_role.vm.name
  member  = google_service_account.vm.member

  condition {
    title       = "rooflaunch-vms-only"
    description = "Instances named rooflaunch-…"
    expression  = <<-CEL
      resource.type == "compute.googleapis.com/Instance" &&
      resource.name.extract("/instances/{name}").startsWith("rooflaunch-")
    CEL
  }
}

resource "google_project_iam_member" "vm_logging" {
  count = var.guest_logging ? 1 : 0

  project = var.project
  role    = "roles/logging.logWriter"
  member  = google_service_account.vm.member
}
