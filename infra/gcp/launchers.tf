# What a person needs for `launch gcp`, status, logs, down, reap and doctor; an owner of the project has it already.

# To start a VM that acts as the service account.
resource "google_service_account_iam_member" "launchers" {
  for_each = var.launchers

  service_account_id = google_service_account.vm.name
  role               = "roles/iam.serviceAccountUser"
  member             = each.value
}

resource "google_storage_bucket_iam_member" "launchers_results" {
  for_each = var.launchers

  bucket = google_storage_bucket.results.name
  role   = "roles/storage.objectUser"
  member = each.value
}

# storage.buckets.get, for `launch doctor gcp`.
resource "google_storage_bucket_iam_member" "launchers_bucket" {
  for_each = var.launchers

  bucket = google_storage_bucket.results.name
  role   = "roles/storage.legacyBucketReader"
  member = each.value
}

resource "google_artifact_registry_repository_iam_member" "launchers_images" {
  for_each = var.launchers

  project    = var.project
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.name
  role       = "roles/artifactregistry.writer"
  member     = each.value
}

# roles/compute.instanceAdmin.v1 could also change and delete every other machine's disks, images and templates.
resource "google_project_iam_custom_role" "launcher" {
  project     = var.project
  role_id     = "rooflaunchLauncher${var.role_suffix}"
  title       = "rooflaunch launcher"
  description = "Start and follow VMs; read quotas"
  permissions = [
    # start
    "compute.disks.create",
    "compute.disks.setLabels",
    "compute.images.getFromFamily",
    "compute.images.useReadOnly",
    "compute.instances.create",
    "compute.instances.setLabels",
    "compute.instances.setMetadata",
    "compute.instances.setServiceAccount",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "compute.zoneOperations.get",
    # follow
    "compute.instances.get",
    "compute.instances.getGuestAttributes",
    "compute.instances.getSerialPortOutput",
    "compute.instances.list",
    "compute.zoneOperations.list",
    # find what is left
    "compute.disks.list",
    # quotas and what doctor asks for
    "compute.projects.get",
    "compute.regions.get",
    "iam.roles.get",
    "iam.serviceAccounts.get",
    "resourcemanager.projects.getIamPolicy",
    "serviceusage.services.list",
    # to ask any service with this project as the quota project of one's credentials
    "serviceusage.services.use",
  ]

  depends_on = [google_project_service.this]
}

resource "google_project_iam_member" "launchers" {
  for_each = var.launchers

  project = var.project
  role    = google_project_iam_custom_role.launcher.name
  member  = each.value
}

# Deletion is a role of its own, since a condition holds for the whole of one: lists have no name of a VM to look at.
resource "google_project_iam_custom_role" "launcher_deletes" {
  project     = var.project
  role_id     = "rooflaunchLauncherDeletes${var.role_suffix}"
  title       = "rooflaunch launcher: deletion"
  description = "Delete VMs and disks of launches"
  permissions = [
    "compute.disks.delete",
    "compute.instances.delete",
  ]

  depends_on = [google_project_service.this]
}

resource "google_project_iam_member" "launchers_delete" {
  for_each = var.launchers

  project = var.project
  role    = google_project_iam_custom_role.launcher_deletes.name
  member  = each.value

  condition {
    title       = "rooflaunch-vms-and-disks-only"
    description = "Instances and disks named rooflaunch-…"
    expression  = <<-CEL
      (resource.type == "compute.googleapis.com/Instance" &&
      resource.name.extract("/instances/{name}").startsWith("rooflaunch-")) ||
      (resource.type == "compute.googleapis.com/Disk" &&
      resource.name.extract("/disks/{name}").startsWith("rooflaunch-"))
    CEL
  }
}
