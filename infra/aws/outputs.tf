output "region" {
  description = "Setting `region`: of bucket, images and VMs."
  value       = var.region
}

output "bucket" {
  description = "Setting `bucket`: where launches/ and runs/ are."
  value       = aws_s3_bucket.results.bucket
}

output "repository" {
  description = "Setting `repository`: where `launch aws` pushes the image to."
  value       = aws_ecr_repository.images.repository_url
}

output "instance_profile" {
  description = "Setting `instance_profile`: what the VMs run as."
  value       = aws_iam_instance_profile.vm.name
}

output "schedule_role" {
  description = "Setting `schedule_role`: what ends a VM at its limit."
  value       = aws_iam_role.schedule.name
}

output "security_group" {
  description = "Setting `security_group`: lets nothing in."
  value       = aws_security_group.vm.name
}

output "launcher_policy" {
  description = "ARN of the policy of those who launch; attach it to a permission set or a role."
  value       = aws_iam_policy.launcher.arn
}

output "rooflaunch_toml" {
  description = "The [aws] table of rooflaunch.toml."
  value       = join("", concat(["[aws]\n"], [for key, value in local.settings : "${key} = \"${value}\"\n"]))
}

locals {
  settings = {
    region           = var.region
    bucket           = aws_s3_bucket.results.bucket
    repository       = aws_ecr_repository.images.repository_url
    instance_profile = aws_iam_instance_profile.vm.name
    schedule_role    = aws_iam_role.schedule.name
    security_group   = aws_security_group.vm.name
  }
}
